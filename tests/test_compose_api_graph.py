"""Plan walks the API graph: its edges, and what the tables promise beside it.

The graph's evidence is what execution shows. So nothing that the tables say is
taken on trust here: every promise of theirs must be an edge, and an edge that
is taken out is not composed any more.
"""

import collections
import dataclasses

import numpy as np

from experiments import synthesize
from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_graph, flow, profile, trace
from rods_jax.host.synthesis.compose import plan, stages, tables
from rods_jax.host.synthesis.compose.records import Plan
from rods_jax.host.synthesis.records import Report

USES = [use for cls in bfcl.CLASSES for use in tables.uses(cls)]
KINDS = tables.kinds(bfcl.CLASSES)
SEEDS = synthesize.seeds()
GRAPH = api_graph.load()
# The same graph, had no ground truth been looked at.
UNSEEN = dataclasses.replace(
    GRAPH,
    links=tuple(k for k in GRAPH.links if k.documented or k.accepted),
    needs=tuple(n for n in GRAPH.needs if n.shown),
)


def named(use):
  """(parameter, kind) of all things that a use can name."""
  return {
      (param, source.kind)
      for params, sources in use.args for source in sources
      if source.how == tables.THING for param in params
  }  # pyformat: disable


def values():
  """(source, output, target, parameter) that the tables can join."""
  return {
      (use.tool, output, target.tool, param)
      for use in USES
      for kind, path in use.makes + use.gives + use.short_gives
      if path[0] != '@'
      for output in tables.outputs(path)
      for target in USES
      for param, other in named(target) if kind == other
  }  # pyformat: disable


def states():
  """(source, target) that the tables can join, by resource or by a thing.

  What a use touches last is closed: nobody touches it afterwards.
  """
  found = set()
  for use in USES:
    bases = [{name.partition(':')[0] for name in names} for names in (
        use.sets + use.adds, use.last)]  # pyformat: disable
    changed = bases[0] - bases[1]
    made = {kind for kind, path in use.makes if path[0] == '@'}
    made |= {
        source.kind for _, sources in use.args for source in sources
        if source.how == tables.NEW
    }  # pyformat: disable
    for target in USES:
      kinds = {kind for _, kind in named(target)}
      wanted = {name.partition(':')[0] for name in (
          target.needs + target.reads + target.long_reads)}  # pyformat: disable
      if any(KINDS[kind].anchored for kind in kinds):
        wanted.add(tables.HERE)
      if changed & wanted or made & kinds:
        found.add((use.tool, target.tool))
  return found


def test_values_that_the_tables_join_are_edges():
  """222 of them; none needs a ground truth, so another split of the training
  scenarios would know them too."""
  ours = values()
  assert len(ours) > 200
  assert {edge for edge in ours if not UNSEEN.feeds(*edge)} == set()


def test_states_that_the_tables_join_are_edges():
  """All but one by probes alone. That one needs a chain of three: who deletes
  a message must have sent it, so the log-in comes in by send_message."""
  ours = states()
  assert len(ours) > 120
  assert {edge for edge in ours if not GRAPH.enables(*edge)} == set()
  assert {edge for edge in ours if not UNSEEN.enables(*edge)} == {
      ('message_login', 'delete_message')
  }
  assert UNSEEN.enables('message_login', 'send_message')
  assert UNSEEN.enables('send_message', 'delete_message')


def test_needs_that_training_tasks_show_are_in_the_tables():
  """Where leaving a call out makes another fail, in half of the scenarios and
  three at least, tables whose tools are both used promise it too: by a
  resource, or by a thing that one makes and the other names."""
  made = collections.defaultdict(set)
  wants = collections.defaultdict(set)
  for use in USES:
    made[use.tool] |= use.provides
    wants[use.tool] |= use.consumes
  missing = {
      (need.source, need.target)
      for need in GRAPH.needs
      if need.fails >= max(3, need.of / 2)
      and made[need.source] and wants[need.target]
      and made[need.source].isdisjoint(wants[need.target])
  }  # pyformat: disable
  assert missing == set()


def test_what_composed_tasks_show_are_edges():
  """Measured, not planned: leaving calls out, and where values come from."""
  count = 0
  for task in synthesize.corpus(SEEDS[::14], 28, 5, Report()):
    executed = trace.run(task)
    tools = [step.call.name for step in executed.steps]
    fed = collections.defaultdict(list)
    for found in flow.flows(executed):
      if found.source is not None:
        keys = flow.outputs_holding(
            executed.steps[found.source], found.argument
        )
        fed[found.source, found.argument.call].append(any(
            GRAPH.feeds(tools[found.source], key, found.argument.tool,
                        found.argument.param)
            for key in keys
        ))  # pyformat: disable
    closest = plan._closest(profile.measure(executed).links)
    for j, i in ((j, i) for j, parents in closest.items() for i in parents):
      by_state = (i, j) in executed.needs and GRAPH.enables(tools[i], tools[j])
      assert by_state or any(fed[i, j]), (tools[i], tools[j])
      count += 1
  assert count > 40


def planned(count=40):
  """What joins the calls of some plans, with counts: (source, target) or
  (source, output, target, parameter)."""
  found = collections.Counter()
  for seed in SEEDS[:count]:
    made = plan.plan(
        stages.brief_of(seed), frozenset(), np.random.default_rng(seed.scenario)
    )
    if not isinstance(made, Plan):
      continue
    closest = plan._closest(made.links)
    for j, step in enumerate(made.steps):
      fed = set()
      for slot in step.slots:
        thing = None if slot.thing is None else made.things[slot.thing]
        if thing is not None and thing.source is not None:
          fed.add(thing.source)
          source = made.steps[thing.source].use.tool
          found.update(
              (source, output, step.use.tool, param)
              for output in thing.outputs for param in slot.params
          )  # pyformat: disable
      found.update(
          (made.steps[i].use.tool, step.use.tool)
          for i in closest.get(j, frozenset()) - fed
      )
  return found


def without(edge):
  """The graph without an edge."""
  if len(edge) == 2:
    return dataclasses.replace(GRAPH, needs=tuple(
        n for n in GRAPH.needs if (n.source, n.target) != edge
    ))  # pyformat: disable
  return dataclasses.replace(
      GRAPH,
      links=tuple(
          k for k in GRAPH.links
          if (k.source, k.output, k.target, k.param) != edge
      ),
      opens=tuple(k for k in GRAPH.opens if (k.tool, k.param) != edge[2:]),
  )  # pyformat: disable


def test_an_edge_taken_out_is_not_composed_any_more(monkeypatch):
  """The most frequent change of state, named output and quoted output."""
  before = planned()
  opens = {(each.tool, each.param) for each in GRAPH.opens}
  order = [edge for edge, _ in before.most_common()]
  chosen = [
      next(e for e in order if len(e) == 2),
      next(e for e in order if len(e) == 4 and e[2:] not in opens),
      next(e for e in order if len(e) == 4 and e[2:] in opens),
  ]
  for edge in chosen:
    fewer = without(edge)
    monkeypatch.setattr(api_graph, 'load', lambda: fewer)
    after = planned()
    assert before[edge] >= 2 and after[edge] == 0, edge
    assert sum(after.values()) > 0.5 * sum(before.values())


def test_a_graph_without_edges_joins_nothing(monkeypatch):
  assert planned(8)
  empty = dataclasses.replace(GRAPH, links=(), opens=(), needs=())
  monkeypatch.setattr(api_graph, 'load', lambda: empty)
  assert not planned(8)
