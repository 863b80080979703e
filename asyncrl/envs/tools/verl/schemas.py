"""What files of tools import from verl.tools.schemas: the function schema in OpenAI's form, and a tool's response.

The names are verl's, so that such files load where verl is not installed. Fields that the schemas do not name are kept:
a nested schema reaches the model as it was written.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Open):
    """One parameter. `type` may be missing where anyOf, enum or const says what is allowed."""

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Open):
    """The parameters of a function: a JSON schema of an object."""

    type: Literal["object"]
    properties: dict[str, OpenAIFunctionPropertySchema] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def required_ones_exist(self) -> Self:
        """Refuse a required parameter that has no entry, a misspelt name as a rule."""
        if unknown := [name for name in self.required if name not in self.properties]:
            raise ValueError(f"required names {', '.join(unknown)}, which properties does not have")
        return self


class OpenAIFunctionSchema(_Open):
    """A function: its name, what it does and what it takes."""

    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = Field(
        default_factory=lambda: OpenAIFunctionParametersSchema(type="object")
    )
    strict: bool = False


class OpenAIFunctionToolSchema(_Open):
    """A tool that is a function."""

    type: Literal["function"]
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(BaseModel):
    """A call as the model wrote it: `arguments` is JSON text."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(BaseModel):
    """A call with its arguments read."""

    name: str
    arguments: dict[str, Any]


class OpenAIFunctionToolCall(BaseModel):
    """A call with its id."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """What a tool says to a call."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether it is text and nothing else."""
        return bool(self.text) and not (self.image or self.video)
