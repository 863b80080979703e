"""POST /generate: whole answers and streams."""

from __future__ import annotations

import asyncio

from asyncrl.inference.local_engine.answers import answer
from asyncrl.inference.local_engine.asgi import Access, Exchange, Reply, Route, json_reply, to_json
from asyncrl.inference.local_engine.generate_body import BodyLimits, GenerateBody, parse
from asyncrl.inference.local_engine.request import FinishReason, RequestRefused
from asyncrl.inference.local_engine.service import Service, Ticket
from asyncrl.inference.local_engine.text import TextCodec


class GenerateRoutes:
    """The generation route of one service."""

    def __init__(self, service: Service, limits: BodyLimits, codec: TextCodec | None) -> None:
        self.service, self.limits, self.codec = service, limits, codec

    def routes(self) -> list[Route]:
        """Its one route."""
        return [Route(("POST", "PUT"), "/generate", self.generate, Access.API)]

    async def generate(self, exchange: Exchange) -> Reply | None:
        """Answers when all sequences are finished, or streams; a client that leaves aborts its sequences."""
        body = exchange.json()
        if isinstance(body, dict) and body.get("stream"):
            await self._stream(exchange, body)
            return None
        parsed = parse(body, self.limits)
        async with exchange.watched(), self.service.enter(parsed.requests) as tickets:
            for ticket in tickets:
                await ticket.done
        failed = next((r for r in (_failure(ticket) for ticket in tickets) if r is not None), None)
        if failed is not None:
            return failed
        answers = ",".join([self._one(ticket, parsed, index) for index, ticket in enumerate(tickets)])
        return Reply(200, (f"[{answers}]" if parsed.is_list else answers).encode())

    def _one(self, ticket: Ticket, parsed: GenerateBody, index: int, *, says_index: bool = False) -> str:
        return answer(
            ticket,
            self.codec,
            version=self.service.version,
            with_logprobs=parsed.return_logprob[index],
            text_in_logprobs=parsed.text_in_logprobs,
            index=index if says_index else None,
        )

    async def _stream(self, exchange: Exchange, body: object) -> None:
        """Events with cumulative chunks, the last with the finish reason, then [DONE]. Refusals come under 200."""
        await exchange.start(200, "text/event-stream; charset=utf-8")
        try:
            parsed = parse(body, self.limits)
            changed = asyncio.Event()
            async with exchange.watched(), self.service.enter(parsed.requests, changed) as tickets:
                await self._follow(exchange, parsed, tickets, changed)
        except RequestRefused as error:
            await exchange.part(_event(to_json({"error": {"message": str(error)}})))
        await exchange.part(b"data: [DONE]\n\n", more=False)

    async def _follow(
        self, exchange: Exchange, parsed: GenerateBody, tickets: list[Ticket], changed: asyncio.Event
    ) -> None:
        sent = [0] * len(tickets)
        open_tickets = set(range(len(tickets)))
        while open_tickets:
            await changed.wait()
            changed.clear()
            for index in sorted(open_tickets):
                ticket = tickets[index]
                finished = ticket.done.done()
                if not finished and len(ticket.output) == sent[index]:
                    continue
                sent[index] = len(ticket.output)
                await exchange.part(_event(self._one(ticket, parsed, index, says_index=parsed.is_list)))
                if finished:
                    open_tickets.discard(index)


def _event(value: str) -> bytes:
    return f"data: {value}\n\n".encode()


def _failure(ticket: Ticket) -> Reply | None:
    finish: FinishReason = ticket.request.finish or {}
    status = finish.get("status_code")
    return json_reply({"error": {"message": finish["message"]}}, status) if isinstance(status, int) else None
