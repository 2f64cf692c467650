"""The API graph: what the documentation and the training tasks show."""

import json
from xml.etree import ElementTree

import pytest

from experiments import api_graph as drawing
from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_graph

TASKS = bfcl.load_tasks(('base',))


@pytest.fixture(scope='module')
def graph():
  """Of bookings (184, 195), tickets (27) and a started car (69)."""
  return api_graph.build(
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
  empty = api_graph.build([])
  assert not empty.needs and not any(k.scenarios for k in empty.links)
  assert len(empty.tools) == 128


def test_names_fit_or_not():
  found = set(api_graph.documented_links())
  assert ('post_tweet', 'id', 'retweet', 'tweet_id') in found
  assert ('create_ticket', 'id', 'edit_ticket', 'ticket_id') in found
  assert ('create_ticket', 'id', 'retweet', 'tweet_id') not in found
  assert ('get_stock_info', 'price', 'place_order', 'price') in found
  assert not any(param == 'status' for _, _, _, param in found)


def test_changes_of_a_call():
  changed = api_graph.changes(TASKS['multi_turn_base_69'])
  assert changed[0] == changed[1] == frozenset()  # only reads
  assert changed[4] == {'VehicleControlAPI.fuelLevel'}
  assert changed[8] == {'TwitterAPI.tweets'}  # not the counter of ids


def test_networkx_and_json(graph):
  found = graph.graph()
  assert len(found) == 128
  assert found.nodes['startEngine']['cls'] == 'VehicleControlAPI'
  kinds = {d['kind'] for *_, d in found.edges('book_flight', data=True)}
  assert kinds == {'value', 'state'}
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
  text = drawing.page(graph, 4)
  assert 'http' not in text.replace('http://www.w3.org/2000/svg', '')
  assert '<td>book_flight' in text
