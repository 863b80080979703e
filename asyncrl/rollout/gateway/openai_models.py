"""OpenAI's `/v1/models`: the policy is the one model there is. Clients of Anthropic's protocol list it by this too."""

from datetime import UTC, datetime

from asyncrl.data.values import Json

PATH = "/v1/models"


def model_body(model: str, created_s: int) -> dict[str, Json]:
    """The body of `/v1/models/{model}`, with the names that both protocols have for the same facts."""
    created = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": model,
        "object": "model",
        "created": created_s,
        "owned_by": "asyncrl",
        "type": "model",
        "display_name": model,
        "created_at": created,
    }


def models_body(model: str, created_s: int) -> dict[str, Json]:
    """The body of `/v1/models`."""
    data: list[Json] = [model_body(model, created_s)]
    return {"object": "list", "data": data, "has_more": False, "first_id": model, "last_id": model}
