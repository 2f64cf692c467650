"""Any call at all gives a bounded result and changes nothing outside."""

import decimal

import hypothesis
from hypothesis import strategies as st
import mpmath

from rods_jax.host import bfcl
from rods_jax.host import env
from rods_jax.types import Call
from tests.worlds import make


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(),
        st.integers(-(10**299), 10**299), st.sampled_from(['a.txt', 'd', '..']),
        st.text(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)
_TOOLS = st.sampled_from(
    [name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)]
)


@st.composite
def _calls(draw):
  name = draw(_TOOLS)
  names = bfcl.parameters(name) + ('self', 'bogus')
  return Call(
      name,
      tuple(draw(st.lists(_VALUES, max_size=2))),
      draw(st.dictionaries(st.sampled_from(names), _VALUES, max_size=4)),
  )


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(st.lists(_calls(), max_size=8), st.sampled_from(
    ['base', 'long_context']))
def test_any_call_gives_a_bounded_result(calls, category):
  task = make(*bfcl.CLASSES, truths=(('pwd()',), ()), category=category)
  before = task.content_hash()
  limits = env.Limits(call_timeout_s=10, max_result_chars=1000)
  episode = env.Episode(task, limits)
  results = episode.execute(calls)
  assert len(results) == len(calls)
  for result in results:
    assert isinstance(result.text, str) and len(result.text) < 1100
    assert not result.timeout
  assert episode.num_calls + episode.num_tool_errors == len(calls)
  episode.end_turn()
  episode.end_turn()
  assert episode.done and task.content_hash() == before
  assert (mpmath.mp.dps, decimal.getcontext().prec) == (15, 28)
