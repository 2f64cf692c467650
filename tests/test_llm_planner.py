"""Plans of a language model: wrong ones, and the feedback loop over HTTP."""

import copy
import json
import math

import numpy as np
import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import profile
from rods_jax.host.synthesis.compose import execute, stages
from rods_jax.host.synthesis.compose.records import Gates, Plan
from rods_jax.host.synthesis.llm import session
from rods_jax.host.synthesis.llm.records import Answer, LlmConfig
from rods_jax.host.synthesis.records import Rejection
from tests.llm_script import ALL, SEED, Model, data_of, made, rng_of


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
  for name in ('HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'OPENAI_API_KEY'):
    monkeypatch.delenv(name, raising=False)


# The right plan registers a card (0) and cancels a booking (1), books a flight
# with that card (2), resolves a ticket (3) and looks at it (4).


OTHER = 7323  # a ticket of the initial state


def spoiled_plans(right):
  """Name -> (a wrong plan, the reason)."""
  def plan(change):
    found = copy.deepcopy(right)
    return json.dumps(change(found) or found)

  def call(index, **changes):
    def change(found):
      [c for turn in found['turns'] for c in turn][index].update(changes)
    return plan(change)

  first = right['turns'][0][0]
  no_tool = 'a tool that is not to be used'
  return {
      'no story': (plan(lambda p: p.pop('story') and p), "'story' is missing"),
      'a call less': (
          plan(lambda p: p['turns'][0].pop() and p), 'another number of calls'
      ),
      'an unknown tool': (call(0, tool='format_disk'), no_tool),
      'no tool': (call(0, tool=None), "'tool' is missing"),
      'no argument': (call(0, args={}), 'an argument is missing'),
      'another argument': (
          call(0, args={**first['args'], 'x': 1}), 'that the tool has not'
      ),
      'the wrong type': (
          call(0, args=dict.fromkeys(first['args'])), 'of the wrong type'
      ),
      'a later result': (
          call(0, args={**first['args'], **dict.fromkeys(
              list(first['args'])[:1], {'call': 4, 'path': 'id'})}),
          'a reference to no earlier result',
      ),
      'a change of nothing': (
          plan(lambda p: p.update(changes=[{'path': ['x', 'y'], 'value': 1}])),
          'not in the state',
      ),
      'no changes': (plan(lambda p: p.update(changes=3)), 'no list'),
      'a change of kind': (
          plan(lambda p: p.update(changes=[{
              'path': ['TicketAPI', 'ticket_counter'], 'value': 'many'
          }])),
          'another kind of value',
      ),
      'other dependencies': (
          call(4, args={'ticket_id': OTHER}), 'dependencies'
      ),
      'a result that is not there': (
          call(4, args={'ticket_id': {'call': 0, 'path': 'ids.0'}}),
          'plan: a reference to nothing',
      ),
  }  # pyformat: disable


@pytest.mark.parametrize('name', spoiled_plans(Model().right[0][0]))
def test_wrong_plans_are_asked_for_again_and_then_rejected(name):
  model = Model()
  wrong, reason = spoiled_plans(model.right[0][0])[name]
  model.spoiled['planner'] = [wrong] * 2
  tasks, report, _ = made(model)
  (key,) = report.reasons
  assert tasks == [] and reason in key
  assert model.asked['writer'] == []


@pytest.mark.parametrize('value', ['x' * 3, 10**400, -1.5, [[]] * 9, {}, True])
@pytest.mark.parametrize('index', range(5))
def test_odd_values_never_crash(value, index):
  """Whatever stands in every argument of a call: a task or a rejection."""
  model = Model()
  plan = copy.deepcopy(model.right[0][0])
  call = [c for turn in plan['turns'] for c in turn][index]
  call['args'] = dict.fromkeys(call['args'], value)
  model.spoiled['planner'] = [json.dumps(plan)] * 2
  tasks, report, _ = made(model)
  assert len(tasks) + sum(report.rejected.values()) == 1


# The feedback loop.


def test_the_planner_is_told_what_failed_and_what_is_blocked():
  """The first plan's last call fails when it is run, so its tool is blocked,
  and the second plan, which uses it, is refused once before a third."""
  model = Model()
  plan = copy.deepcopy(model.right[0][0])
  last = plan['turns'][-1][-1]
  assert last['tool'] == 'get_ticket'
  last['args'] = {'ticket_id': 99_999}
  model.spoiled['planner'] = [json.dumps(plan)]
  _, report, _ = made(model, attempts=2)
  assert report.rejected['execute'] == 1
  first, second, third = model.asked['planner']
  roles = [m['role'] for m in second['messages']]
  assert roles == ['system', 'user', 'assistant', 'user']
  assert second['messages'][:2] == first['messages'], 'another initial state'
  assert json.loads(second['messages'][2]['content']) == plan
  told = data_of(second, 3)
  assert told['stage'] == 'execute' and told['blocked'] == [last['tool']]
  assert last['tool'] in told['reason']
  assert 'not to be used' in third['messages'][5]['content']


def test_the_planner_is_told_which_dependencies_it_made():
  """It looks at another ticket than the one that it has resolved: call 4 then
  depends on no other, and the seed's shape, two pairs, is lost."""
  model = Model()
  wrong, _ = spoiled_plans(model.right[0][0])['other dependencies']
  model.spoiled['planner'] = [wrong]
  tasks, report, _ = made(model, attempts=2)
  assert len(tasks) == 1 and report.attempts == 2
  told = data_of(model.asked['planner'][1], 3)
  assert told['reason'] == 'the calls have other dependencies'
  assert told['detail'] == 'wanted [(1, 2), (3, 4)], found [(0, 2)]'
  assert told['blocked'] == []


def test_the_planner_is_told_of_the_gates_on_structure():
  """Calls 2 and 4 depend on 1 and 3. Half of the seed's turns that need an
  earlier one are wanted, rounded up; all of them where the gate says so."""
  model = Model()
  made(model)
  data = data_of(model.asked['planner'][0])
  theirs = profile.of(SEED)
  assert data['classes'] == list(theirs.classes)
  owners = {entry['tool']: entry['class'] for entry in data['tools']}
  assert all(owners[tool] == bfcl.owner(tool) for tool in owners)
  assert data['turns_that_need_an_earlier_one'] == math.ceil(
      theirs.turns_back / 2
  ) > 0


def ticket_in_between(calls):
  """The second call is of the other class."""
  calls[1] = {'tool': 'get_ticket', 'args': {'ticket_id': OTHER}}
  return calls


def card_and_flight_in_one_turn(calls):
  """The dependence across turns is one inside the first turn."""
  nearest = {'tool': 'get_nearest_airport_by_city',
             'args': {'location': 'Rivermist'}}  # pyformat: disable
  return [calls[0], calls[2], nearest, *calls[3:]]


@pytest.mark.parametrize(
    ('change', 'loose', 'reason', 'detail'),
    [
        (
            ticket_in_between, Gates(max_class_distance=0.2),
            'the calls are of other classes',
            "wanted ['TravelAPI', 'TravelAPI', 'TravelAPI', 'TicketAPI', "
            "'TicketAPI'], found ['TravelAPI', 'TicketAPI', 'TravelAPI', "
            "'TicketAPI', 'TicketAPI']",
        ),
        (
            card_and_flight_in_one_turn, Gates(min_cross_turn=0.0),
            'too few turns need an earlier one',
            'wanted 1, found 0: turns []',
        ),
    ],
    ids=['classes', 'turns'],
)  # pyformat: disable
def test_plans_that_the_gates_would_drop_are_refused_before_words(
    change, loose, reason, detail
):
  """One call of five may be of another class at a distance of 0.2."""
  right = copy.deepcopy(Model().right[0][0])
  calls = iter(change([c for turn in right['turns'] for c in turn]))
  right['turns'] = [[next(calls) for _ in turn] for turn in right['turns']]

  def planned(gates):
    return session.stages(lambda _: Answer(json.dumps(right)), gates).plan(
        stages.brief_of(SEED), frozenset(), rng_of(SEED), None
    )

  assert planned(Gates()) == Rejection('plan', reason, detail)
  assert isinstance(planned(loose), Plan), planned(loose)


def test_a_value_that_the_user_said_before_is_a_reference():
  """The access token of the first turn may be left to it in the second: with
  the booking cancelled there, one turn may need an earlier one."""
  right = copy.deepcopy(Model().right[0][0])
  (card, cancel), (flight,), rest = right['turns']
  right['turns'] = [[card, flight], [cancel], rest]
  found = session.stages(lambda _: Answer(json.dumps(right))).plan(
      stages.brief_of(SEED), frozenset(), rng_of(SEED), None
  )
  assert isinstance(found, Plan), found


def test_what_another_state_avoids_is_patched_and_asks_for_nothing():
  """An order of more than the account holds: the account gets more."""
  seed = ALL['multi_turn_base_122']
  brief = stages.brief_of(seed)
  poor = {'path': ['TradingBot', 'account_info', 'balance'], 'value': 1}
  asked = []

  def ask(question):
    asked.append(question)
    config = data_of(question.body(LlmConfig('', 'm')))['initial_state']
    symbol, stock = next(iter(config['TradingBot']['stocks'].items()))
    order = {'order_type': 'Buy', 'symbol': symbol, 'price': stock['price'],
             'amount': 5}  # pyformat: disable
    calls = iter([
        {'tool': 'place_order', 'args': order},
        {'tool': 'get_order_details',
         'args': {'order_id': {'call': 0, 'path': 'order_id'}}},
        {'tool': 'cancel_order',
         'args': {'order_id': {'call': 0, 'path': 'order_id'}}},
        {'tool': 'get_watchlist', 'args': {}},
    ])  # pyformat: disable
    turns = [[next(calls) for _ in range(n)] for n in brief.calls]
    return Answer(json.dumps({'story': 's', 'changes': [poor], 'turns': turns}))

  plan = session.stages(ask).plan(
      brief, frozenset(), np.random.default_rng(0), None
  )
  assert len(asked) == 1, plan
  assert plan.config['TradingBot']['account_info']['balance'] == 1.0
  executed = execute.execute(plan, np.random.default_rng(0))
  assert executed.patches == ('more money',)
  assert executed.config['TradingBot']['account_info']['balance'] > 1e5
