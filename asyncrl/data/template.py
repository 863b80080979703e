"""Prompts as a model reads them: its chat template rendered and tokenized, without transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jinja2
from blake3 import blake3
from tokenizers import Tokenizer

from asyncrl.data.control_tokens import ControlTokens
from asyncrl.data.jinja_environment import compile_template, literal_text, plain_data, template_messages
from asyncrl.data.values import Json
from asyncrl.errors import DataError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOOL_USE = "tool_use"  # the name of that template in transformers


class TemplateRefused(DataError):
    """The chat template raised on these messages, or gives no prompt for them."""


@dataclass(frozen=True)
class TokenizerFiles:
    """What a model directory says about text: tokenizer, its config, templates by name, generation settings."""

    path: Path
    tokenizer_json: str
    config: Mapping[str, Json]
    templates: Mapping[str, str]
    generation_config: Mapping[str, Json]
    model_config: Mapping[str, Json]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the files of a model directory, with the precedence of transformers.

        Raises:
            DataError: no tokenizer.json, or no chat template; the message says what to do.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise DataError(
                f"{path} has no tokenizer.json, so prompts cannot be tokenized. "
                "Set model.path to a Hugging Face model directory with a fast tokenizer."
            )
        config = _read_json(path / "tokenizer_config.json")
        config = {**_read_json(path / "special_tokens_map.json"), **config}
        templates = _templates(path, config)
        if not templates:
            raise DataError(
                f"{path} has no chat template (no chat_template.jinja, no chat_template in tokenizer_config.json), as "
                f"base models have none. Put one into {path / 'chat_template.jinja'}, or use the model's chat version."
            )
        generation, model = _read_json(path / "generation_config.json"), _read_json(path / "config.json")
        return cls(path, file.read_text("utf-8"), config, templates, generation, model)

    def named_tokens(self) -> dict[str, str]:
        """Special tokens by the names that templates use, such as bos_token."""
        found = {}
        for name in _NAMED_TOKENS:
            token = self.config.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found[name] = content
        return found


class PromptTemplate:
    """Messages to token ids, equal to transformers' apply_chat_template.

    One difference: a control token written in a message is encoded as plain text, so that no row can open a turn of its
    own (transformers does the same under `sanitize_control_tokens=True`).
    """

    def __init__(self, files: TokenizerFiles, variables: Mapping[str, Json] | None = None) -> None:
        self.path = files.path
        self._tokenizer = Tokenizer.from_str(files.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._variables = {**files.named_tokens(), **(variables or {})}
        self.source = "\n".join(files.templates.values())
        """Source of the templates, which shows what the model was trained to write."""
        self._templates: dict[str, jinja2.Template] = {}
        self._control: dict[str, ControlTokens] = {}
        for name, source in files.templates.items():
            try:
                self._templates[name] = compile_template(source)
                self._control[name] = ControlTokens.of(self._tokenizer, literal_text(source), files.config)
            except jinja2.TemplateError as error:
                raise DataError(f"the chat template {name!r} of {files.path} is malformed: {error}") from None
        described = [files.tokenizer_json, dict(files.templates), self._variables]
        self._fingerprint = blake3(json.dumps(described, sort_keys=True).encode()).hexdigest(length=16)

    @classmethod
    def from_model_dir(cls, path: Path, variables: Mapping[str, Json] | None = None) -> Self:
        """Load from a model directory; `variables` are further names for the template, such as enable_thinking.

        Raises:
            DataError: see TokenizerFiles.read, or the template is malformed.
        """
        return cls(TokenizerFiles.read(Path(path)), variables)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over tokenizer, templates and variables: equal ones give equal ids."""
        return self._fingerprint

    @property
    def has_tool_template(self) -> bool:
        """Whether prompts with tools have a template of their own."""
        return _TOOL_USE in self._templates

    def render_text(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text, control tokens in messages included as they are.

        Raises:
            TemplateRefused: the template raised, for example on an order of roles it does not know.
        """
        if not messages:
            raise TemplateRefused("a prompt needs at least one message")
        try:
            return self._templates[self._name(tools)].render(
                messages=template_messages(messages),
                tools=plain_data(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        # Templates are programs: besides their own errors they stumble over missing keys and types.
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages[:10])
            raise TemplateRefused(
                f"the chat template of {self.path} refused messages with the roles {roles}: {error}"
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]] = (),
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of a prompt, ready for the model: special tokens are the template's, none are added.

        Args:
            messages: role and content of each turn, oldest first.
            tools: JSON schemas of the tools that the template may show.
            add_generation_prompt: end with the beginning of the assistant's turn.
        Raises:
            TemplateRefused: see render_text.
        """
        control = self.control_of(tools)
        if not control.found_in([messages, tools]):
            return self.encode(self.render_text(messages, tools, add_generation_prompt))
        marked, marked_tools = template_messages(control.marked(messages)), control.marked(tools)
        assert isinstance(marked_tools, list)
        schemas = [tool for tool in marked_tools if isinstance(tool, dict)]
        return control.encode(self.render_text(marked, schemas, add_generation_prompt))

    def control_tokens_in(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[str, ...]:
        """Control tokens that the strings of a prompt contain; normal text contains none."""
        return self.control_of(tools).found_in([messages, tools])

    def control_of(self, tools: Sequence[object]) -> ControlTokens:
        """The control tokens of the template that renders prompts with these tools."""
        return self._control[self._name(tools)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, nothing added before or after it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _name(self, tools: Sequence[object]) -> str:
        if tools and self.has_tool_template:
            return _TOOL_USE
        return "default" if "default" in self._templates else next(iter(self._templates))


def _templates(path: Path, config: Mapping[str, Json]) -> dict[str, str]:
    """Templates by name; files win over the tokenizer's config."""
    found = {}
    if (path / "chat_template.jinja").is_file():
        found["default"] = (path / "chat_template.jinja").read_text("utf-8")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text("utf-8")
    if found:
        return found
    value = config.get("chat_template") or _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {str(item["name"]): str(item["template"]) for item in entries if isinstance(item, dict)}


def _read_json(path: Path) -> dict[str, Json]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object")
    return value
