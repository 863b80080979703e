"""A continuous-batching engine for machines without a GPU; `asyncrl.inference.local_server` puts HTTP in front of it.

The life of one request:

1. `routes_generate` reads the JSON body -> `generate_body` -> one checked `Request` per sequence.
2. `service` holds it at the gate while the server is paused, registers its rid, and hands it to `engine_loop`.
3. `engine_loop`, the one thread that touches tensors, takes it from its inbox between two steps.
4. `engine.tick` admits it to a row: `prefix_cache` has its prompt, or `forward.prefill` computes it (packed with
   whoever else is new) and `kv_cache` keeps keys and values; `sampling` draws the first token.
5. Every later tick is one `forward.decode` for all live rows, in float32 and beside numba by way of `fused`, which has
   `kernels` between the matrix products; `rows` holds the rows' state as vectors.
6. Stop token, stop string, length or abort: `engine` retires the row, the last row moves into the hole.
7. One `call_soon_threadsafe` per tick carries everything finished to the event loop -> `answers` -> JSON.

Weights: `weights` is the plain storage that HF names view and weight updates write; `compute` keeps what the matmuls
read (transposed, packed, or cast), rebuilt before the first step after an update; `weight_updates` runs the loaders
between steps.
"""
