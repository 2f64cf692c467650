"""Hugging Face folders with a small tokenizer and the template of a family.

The templates of Qwen3 and Llama-3.1 are read from the sources of bfcl-eval,
which quotes them. Those of Qwen2.5 and SmolLM2 are written here in the form
that the families have; what they say of themselves in words is ours.
"""

import functools
import json
import pathlib
import textwrap

import tokenizers
import transformers

from rods_jax.host import bfcl
from rods_jax.host import tool_schemas

_CHATML = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
_LLAMA = (
    '<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>',
    '<|end_header_id|>', '<|eom_id|>', '<|eot_id|>', '<|python_tag|>',
)

_QWEN25 = r"""
{%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}
    {{- messages[0].content }}
  {%- else %}
    {{- 'You help.' }}
  {%- endif %}
  {{- '\n\n# Tools\n\nThey are:\n<tools>' }}
  {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
  {{- '\n</tools>\n\nCall them so:\n<tool_call>\n{"name": <function-name>,' }}
  {{- ' "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role != 'system' %}
  {{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'user' or message.role == 'system'
      or (message.role == 'assistant' and not message.tool_calls) %}
    {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == 'assistant' %}
    {{- '<|im_start|>assistant' }}
    {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls %}
      {{- '\n<tool_call>\n{"name": "' + call.function.name }}
      {{- '", "arguments": ' + (call.function.arguments | tojson) }}
      {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == 'tool' %}
    {%- if messages[loop.index0 - 1].role != 'tool' %}
      {{- '<|im_start|>user' }}
    {%- endif %}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
      {{- '<|im_end|>\n' }}
    {%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

_SMOLLM2 = (
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _quoted(module: str) -> str:
  """The template in the docstring of a model handler of bfcl-eval."""
  path = bfcl.package_folder() / 'model_handler/local_inference'
  text = (path / f'{module}.py').read_text(encoding='utf-8')
  text = text.split('"chat_template":\n')[1].split('"""')[0]
  return textwrap.dedent(text).strip()


def template(family: str) -> str:
  if family == 'qwen3':
    return _quoted('qwen_fc')
  if family == 'llama31':
    return _quoted('llama_3_1')
  return {'qwen25': _QWEN25.strip(), 'smollm2': _SMOLLM2}[family]


# Family -> control tokens, those that are no special tokens, begin and end.
TOKENS = {
    'qwen25': (_CHATML, ('<tool_call>', '</tool_call>'), None, '<|im_end|>'),
    'qwen3': (
        _CHATML,
        ('<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>',
         '<think>', '</think>'),
        None,
        '<|im_end|>',
    ),
    'llama31': (_LLAMA, (), '<|begin_of_text|>', '<|eot_id|>'),
    'smollm2': (_CHATML, (), '<|im_start|>', '<|im_end|>'),
}


@functools.cache
def core(vocab_size: int = 1500, words: bool = True) -> str:
  """A byte-level BPE that learned from the tools' documentation, as JSON.

  Without `words` its tokens reach over words, so that prompts are short.
  """
  docs = [
      json.dumps(tool_schemas.schema(name))
      for cls in bfcl.CLASSES
      for name in bfcl.tool_names(cls)
  ]
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=words
  )
  made.decoder = tokenizers.decoders.ByteLevel()
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  made.train_from_iterator(
      docs,
      tokenizers.trainers.BpeTrainer(
          vocab_size=vocab_size, initial_alphabet=alphabet,
          show_progress=False,
      ),
  )
  return made.to_str()


def write(
    folder: pathlib.Path,
    family: str,
    made: tokenizers.Tokenizer | None = None,
    chat_template: str | None = None,
) -> transformers.PreTrainedTokenizerFast:
  """Writes the tokenizer's files as transformers does; returns its own."""
  made = made or tokenizers.Tokenizer.from_str(core())
  special, others, begin, end = TOKENS[family]
  made.add_special_tokens(list(special))
  made.add_tokens([
      tokenizers.AddedToken(word, special=False, normalized=False)
      for word in others
  ])
  fast = transformers.PreTrainedTokenizerFast(
      tokenizer_object=made, bos_token=begin, eos_token=end,
      pad_token='<|endoftext|>' if '<|endoftext|>' in special else None,
  )
  fast.chat_template = chat_template or template(family)
  fast.save_pretrained(folder)
  return transformers.PreTrainedTokenizerFast.from_pretrained(folder)
