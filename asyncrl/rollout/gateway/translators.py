"""The protocols that the gateway speaks. Another one is a translator of its own and a line here."""

from asyncrl.rollout.gateway.anthropic_messages import AnthropicMessages
from asyncrl.rollout.gateway.conversation import Translator
from asyncrl.rollout.gateway.openai_chat import OpenAIChat
from asyncrl.rollout.gateway.openai_responses import OpenAIResponses

TRANSLATORS: tuple[Translator, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages())
