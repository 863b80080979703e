"""Small model directories in the shape of well-known chat models: a trained tokenizer and a template each."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "What is 2+2? The answer is four. sort 5281 hello world, user assistant system tool model",
    'Use the tools: {"name": "calc", "arguments": {"expr": "4*5"}} <tool_response> reasoning content',
    "You are a helpful assistant.\n\nThink step by step.\nToday is a good day; knowledge cutoff. caf\u00e9 \u2764",
]

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last_query = messages|length - loop.index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content and loop.index0 < ns.last_query %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Year: " + date_string + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('only user and assistant roles') }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

GPT_OSS = """{%- macro render_tool(tool) -%}
    {{- "type " + tool.name + " = (_: " + (tool.parameters | tojson(sort_keys=true)) + ") => any;\\n" }}
{%- endmacro -%}
{%- macro system() -%}
    {{- "You are a helpful assistant.\\nYear: " + strftime_now("%Y") + "\\n" }}
    {%- if tools %}{%- for tool in tools %}{{- render_tool(tool) }}{%- endfor %}{%- endif %}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- system() }}{{- "<|end|>" }}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if loop.last and not add_generation_prompt %}
            {%- if message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" }}
            {%- generation %}{{ message.content }}{% endgeneration %}
            {{- "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {{- "<|start|>functions." + (message.name or 'tool') + " to=assistant<|message|>" }}
        {{- message.content|tojson + "<|end|>" }}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""

STARTER = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

FAMILIES: dict[str, tuple[str, list[str], str, str | None, list[int] | None]] = {
    # template, special tokens, eos, bos
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None, None),
    "llama3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
        "<|eot_id|>",
        "<|begin_of_text|>",
        None,
    ),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], "</s>", "<s>", None),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", "<bos>", [1, 3]),
    "gpt_oss": (
        GPT_OSS,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"],
        "<|return|>",
        None,
        None,
    ),
    "starter": (STARTER, ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"], "<|end|>", None, None),
}


def make_model_dir(path: Path, family: str) -> Path:
    """Write the tokenizer's files of a family into `path`."""
    template, specials, eos, bos, eos_ids = FAMILIES[family]
    path.mkdir(parents=True, exist_ok=True)
    make_tokenizer(family, specials, bos).save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "chat_template": template}
    if bos:
        config["bos_token"] = bos
    if family == "gemma":  # newer directories keep the template in a file of its own
        (path / "chat_template.jinja").write_text(config.pop("chat_template"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if eos_ids is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_ids}))
    return path


def make_tokenizer(family: str, specials: list[str], bos: str | None) -> Tokenizer:
    """A byte-level tokenizer; for mistral and gemma one in SentencePiece's form, for starter one of characters."""
    if family == "starter":
        chars = "0123456789abcdefghijklmnopqrstuvwxyz +-*=:,?.\n"
        vocab = {token: i for i, token in enumerate([*specials, *chars, "<unk>"])}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(specials)
        return tokenizer
    tokenizer = Tokenizer(models.BPE(byte_fallback=family in ("mistral", "gemma")))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if family in ("mistral", "gemma"):
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        if family == "mistral":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), tokenizer.normalizer])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = sorted({*"".join(TEXT), "\u2581"})
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    extra = [f"<0x{byte:02X}>" for byte in range(256)] if family in ("mistral", "gemma") else []
    trainer = trainers.BpeTrainer(
        vocab_size=len(specials) + len(extra) + len(alphabet) + 120,
        special_tokens=[*specials],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if extra:
        tokenizer = _with_bytes(tokenizer, extra)
    if bos:  # as in the originals: adds a second bos unless it is told not to
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return tokenizer


def _with_bytes(tokenizer: Tokenizer, extra: list[str]) -> Tokenizer:
    """The tokenizer with a token for every byte, which characters outside its alphabet fall back to."""
    described = json.loads(tokenizer.to_str())
    vocab = described["model"]["vocab"]
    for token in extra:
        vocab.setdefault(token, len(vocab))
    return Tokenizer.from_str(json.dumps(described))
