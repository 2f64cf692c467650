"""Bytes to and from HBM of a small program, counted by hand."""

from experiments import hlo_bytes
from experiments import hlo_costs

# Rows of 128 floats have 512 bytes, and all 64 of them 32,768.
PROGRAM = '''HloModule small

%put (a: f32[64,128], b: f32[1,128], i: s32[]) -> f32[64,128] {
  %a = f32[64,128]{1,0} parameter(0)
  %b = f32[1,128]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %u = f32[64,128]{1,0} dynamic-update-slice(%a, %b, %i, %z)
}

%n (p: f32[1,128]) -> f32[1,128] {
  ROOT %p = f32[1,128]{1,0} parameter(0)
}

%d (p: f32[1,128]) -> f32[1,128] {
  %p = f32[1,128]{1,0} parameter(0)
  ROOT %e = f32[1,128]{1,0} add(%p, %p)
}

%body (s: (f32[64,128], s32[])) -> (f32[64,128], s32[]) {
  %s = (f32[64,128]{1,0}, s32[]) parameter(0)
  %x = f32[64,128]{1,0} get-tuple-element(%s), index=0
  %i = s32[] get-tuple-element(%s), index=1
  %row = f32[1,128]{1,0} dynamic-slice(%x, %i, %i), dynamic_slice_sizes={1,128}
  %c = f32[1,128]{1,0} conditional(%i, %row, %row), branch_computations={%n, %d}
  %new = f32[64,128]{1,0} fusion(%x, %c, %i), kind=kLoop, calls=%put
  %go = (f32[64,128]{1,0:S(1)}, f32[64,128]{1,0}, u32[]{:S(2)}) copy-start(%new)
  %near = f32[64,128]{1,0:S(1)} copy-done(%go)
  %twice = f32[64,128]{1,0:S(1)} add(%near, %near)
  ROOT %t = (f32[64,128]{1,0}, s32[]) tuple(%new, %i)
}

%proceed (s: (f32[64,128], s32[])) -> pred[] {
  %s = (f32[64,128]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=1
  ROOT %l = pred[] compare(%i, %i), direction=LT
}

ENTRY %main (x: f32[64,128], i: s32[]) -> f32[64,128] {
  %x = f32[64,128]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %y = f32[64,128]{0,1} copy(%x)
  %t = (f32[64,128]{1,0}, s32[]) tuple(%y, %i)
  %w = (f32[64,128]{1,0}, s32[]) while(%t), condition=%proceed, body=%body
  ROOT %out = f32[64,128]{1,0} get-tuple-element(%w), index=0
}
'''


def test_a_step_counts_what_it_touches():
  """Slice: a row in, a row out, two indices: 1,032. Conditional: its longer
  branch reads a row twice and writes one: 1,536. Update in place: a row in, a
  row out, an index: 1,028. Prefetch: 32,768, read once; the sum on chip: 0.

  A count of all operands and results would be seven times that.
  """
  traffic = hlo_bytes.Traffic(hlo_costs.Program(PROGRAM))
  assert traffic.per_step() == 1032 + 1536 + 1028 + 32_768
  assert traffic.once() == 2 * 32_768  # the copy before the loop


def test_arrays_on_chip_have_no_bytes():
  assert hlo_bytes.array_bytes(
      '(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, pred[7]{0}, u32[]{:S(2)}, f32[])'
  ) == [0, 7, 0, 4]
