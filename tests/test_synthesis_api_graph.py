"""The API graph: what documentation, training tasks and probes show."""

import dataclasses
import json
from xml.etree import ElementTree

import pytest

from experiments import api_graph as drawing
from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_build, api_graph, api_probe
from rods_jax.host.synthesis.api_graph import ApiGraph, Link, Need, Open

TASKS = bfcl.load_tasks(('base',))


@pytest.fixture(scope='module')
def graph():
  """Of bookings (184, 195), tickets (27) and a started car (69)."""
  return api_build.build(
      TASKS[f'multi_turn_base_{i}'] for i in (184, 195, 27, 69)
  )


def link(graph, source, target, param):
  (found,) = [
      k for k in graph.links
      if (k.source, k.target, k.param) == (source, target, param)
  ]  # pyformat: disable
  return found


def test_values_that_flow(graph):
  """Both dialogues cancel what they book; only 184 fetches an invoice."""
  booking = link(graph, 'book_flight', 'cancel_booking', 'booking_id')
  assert booking.output == 'booking_id' and booking.documented
  assert booking.scenarios == (184, 195)
  invoice = link(graph, 'book_flight', 'retrieve_invoice', 'booking_id')
  assert invoice.scenarios == (184,)
  # Documented, and in none of these dialogues.
  order = link(graph, 'place_order', 'cancel_order', 'order_id')
  assert order.documented and order.scenarios == ()
  # Of another name: only observation finds it.
  code = link(graph, 'get_zipcode_based_on_city', 'estimate_distance', 'cityA')
  assert (code.output, code.documented) == ('zipcode', False)


def test_state_that_is_needed(graph):
  needs = {(n.source, n.target): n for n in graph.needs}
  engine = needs['pressBrakePedal', 'startEngine']
  assert engine.scenarios == (69,) and engine.of == engine.fails == 1
  assert 'VehicleControlAPI.brakePedalStatus' in engine.state
  # The level shown changes, the engine starts all the same.
  assert needs['fillFuelTank', 'startEngine'].fails == 0
  assert needs['ticket_login', 'create_ticket'].state == (
      'TicketAPI.current_user',
  )
  assert ('get_flight_cost', 'book_flight') not in needs


def test_other_tasks_leave_no_trace(graph):
  """Held-out scenarios must not show in a graph of the training ones."""
  seen = {s for e in graph.links + graph.needs for s in e.scenarios}
  assert seen == {184, 195, 27, 69}
  assert graph.calls['place_order'] == 0 and graph.calls['book_flight'] == 2
  empty = api_build.build([])
  assert not empty.needs and not any(k.scenarios for k in empty.links)
  assert len(empty.tools) == 128


def test_names_fit_or_not():
  found = set(api_build.documented_links())
  assert ('post_tweet', 'id', 'retweet', 'tweet_id') in found
  assert ('create_ticket', 'id', 'edit_ticket', 'ticket_id') in found
  assert ('create_ticket', 'id', 'retweet', 'tweet_id') not in found
  assert ('get_stock_info', 'price', 'place_order', 'price') in found
  assert not any(param == 'status' for _, _, _, param in found)


def test_changes_of_a_call():
  changed = api_build.changes(TASKS['multi_turn_base_69'])
  assert changed[0] == changed[1] == frozenset()  # only reads
  assert changed[4] == {'VehicleControlAPI.fuelLevel'}
  assert changed[8] == {'TwitterAPI.tweets'}  # not the counter of ids


def test_networkx_and_json(graph):
  found = graph.graph()
  assert len(found) == 128
  assert found.nodes['startEngine']['cls'] == 'VehicleControlAPI'
  kinds = {d['kind'] for *_, d in found.edges('book_flight', data=True)}
  assert kinds == {'value', 'state'}
  assert ApiGraph.from_text(graph.to_text()) == graph
  data = json.loads(json.dumps(graph.to_json()))
  assert len(data['links']) == len(graph.links)


def test_the_drawing_is_whole(graph):
  """Every tool is a label, every pair of tools with an edge a curve."""
  svg = ElementTree.fromstring(drawing.draw(graph))
  space = '{http://www.w3.org/2000/svg}'
  labels = {t.get('data-tool') for t in svg.iter(f'{space}text')} - {None}
  assert labels == set(graph.tools)
  curves = [p for p in svg.iter(f'{space}path') if p.get('data-from')]
  assert len(curves) == len(drawing.edges(graph)) > 50
  text = drawing.page(graph)
  assert 'http' not in text.replace('http://www.w3.org/2000/svg', '')
  assert '<td>book_flight' in text


@pytest.fixture(scope='module')
def probes():
  """Of tickets alone; no other class is there to find open parameters."""
  return api_probe.Probes(('TicketAPI',))


def test_probes_find_outputs_that_feed(probes):
  """The id is taken, the status and the person's name are no ids."""
  assert probes.outputs['create_ticket']['id'] == 'number'
  assert probes.outputs['create_ticket']['title'] == 'text'
  for target in ('get_ticket', 'close_ticket', 'edit_ticket'):
    accepted, count = probes.links['create_ticket', 'id', target, 'ticket_id']
    assert 0 < accepted <= count
  # A priority is a number too, of 1 to 5, and no ticket has such an id.
  accepted, count = probes.links[
      'create_ticket', 'priority', 'get_ticket', 'ticket_id'
  ]
  assert accepted == 0 and count > 0
  assert probes.opens == ()


def test_probes_find_state_that_is_needed(probes):
  made = probes.needs['create_ticket', 'get_ticket']
  assert 0 < made.shown < made.probes  # other tickets do not show it
  assert made.broken == made.shown
  assert made.state == {'TicketAPI.ticket_queue'}
  login = probes.needs['ticket_login', 'create_ticket']
  assert login.shown == login.broken > 0
  assert probes.needs['close_ticket', 'get_ticket'].shown > 0
  assert probes.needs['close_ticket', 'get_ticket'].broken == 0
  # After a log-out nothing works that needs the log-in: it is not needed.
  assert probes.needs['logout', 'create_ticket'].shown == 0
  assert not any(source == 'get_ticket' for source, _ in probes.needs)


def test_probes_are_evidence_of_the_graph(probes):
  """Beside what four tasks show, of which one opens a ticket."""
  tasks = [TASKS[f'multi_turn_base_{i}'] for i in (184, 27)]
  found = api_build.build(tasks, probes)
  ticket = link(found, 'create_ticket', 'get_ticket', 'ticket_id')
  assert ticket.documented and ticket.accepted > 0
  assert ticket.probes >= ticket.accepted
  needs = {(n.source, n.target): n for n in found.needs}
  login = needs['ticket_login', 'create_ticket']
  assert login.scenarios == (27,) and login.of == login.fails == 1
  assert login.shown == login.broken > 0
  assert needs['create_ticket', 'get_user_tickets'].scenarios == ()
  assert not found.feeds('create_ticket', 'priority', 'get_ticket', 'ticket_id')
  assert found.outputs['create_ticket']['id'] == 'number'


def test_who_can_follow_whom():
  """By a link, by a need, and by an open parameter: a text takes numbers too,
  a number no text."""
  graph = ApiGraph(
      calls={},
      outputs={
          'wc': {'count': 'number', 'type': 'text'}, 'cat': {'text': 'text'},
          'add': {'result': 'number'},
      },
      links=(Link('find', 'matches', 'cat', 'file_name', False, (3,)),),
      opens=(Open('echo', 'content', 'text', 9, 9),
             Open('add', 'a', 'number', 9, 9)),
      needs=(Need('cd', 'ls', ('GorillaFileSystem._current_dir',)),),
  )  # pyformat: disable
  assert graph.feeds('find', 'matches', 'cat', 'file_name')
  assert not graph.feeds('find', 'matches', 'cat', 'other')
  assert graph.feeds('wc', 'count', 'echo', 'content')
  assert graph.feeds('wc', 'count', 'add', 'a')
  assert not graph.feeds('wc', 'type', 'add', 'a')
  assert not graph.feeds('wc', 'unknown', 'echo', 'content')
  assert graph.enables('cd', 'ls') and not graph.enables('ls', 'cd')
  followers = {t: f for t, f in graph.successors.items() if f}
  assert followers == {
      'find': {'cat'}, 'cd': {'ls'}, 'wc': {'echo', 'add'}, 'cat': {'echo'},
      'add': {'echo', 'add'},
  }  # pyformat: disable
  fewer = dataclasses.replace(graph, needs=())
  assert not fewer.enables('cd', 'ls') and not fewer.successors['cd']


def test_the_shipped_graph_knows_training_scenarios_alone():
  graph = api_graph.load()
  train, heldout = bfcl.split(bfcl.load_tasks(), 'scenario', 100, 0)
  seen = {s for e in graph.links + graph.needs for s in e.scenarios}
  assert len(seen) > 60
  assert seen <= {task.scenario for task in train.values()}
  assert not seen & {task.scenario for task in heldout.values()}
  assert max(graph.calls.values()) <= 100
  for edges, size in ((graph.links, 4), (graph.opens, 2), (graph.needs, 2)):
    keys = [dataclasses.astuple(edge)[:size] for edge in edges]
    assert len(set(keys)) == len(keys)
  for edge in graph.links:
    assert edge.documented or edge.scenarios or edge.accepted
  for edge in graph.needs:
    assert edge.scenarios or edge.shown


@pytest.mark.slow
def test_the_shipped_graph_is_what_the_command_builds():
  """Byte for byte; `python -m experiments.api_graph --write` mends it."""
  assert drawing.build().to_text() == api_graph.ASSET.read_text('utf-8')
