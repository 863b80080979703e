"""Every kind of fault by name, with what it needs for itself."""

from tests.support.soak import process_faults as process
from tests.support.soak import server_faults as server
from tests.support.soak.scene import Fault

REDIS, TRAINER, PRODUCERS, PAYLOADS = (frozenset({name}) for name in ("redis", "trainer", "producers", "payloads"))
FAULTS = {
    "kill_producer": Fault(process.kill_producer, 8, shares=PRODUCERS),
    "stop_producer": Fault(process.stop_producer, 3, shares=PRODUCERS),
    "freeze_producer": Fault(process.freeze_producer, 3, shares=PRODUCERS),
    "preempt": Fault(process.preempt, 0.4, holds=PRODUCERS | TRAINER, shares=REDIS),
    "kill_trainer": Fault(process.kill_trainer, 3, shares=TRAINER),
    "stop_trainer": Fault(process.stop_trainer, 1, shares=TRAINER),
    "freeze_trainer": Fault(process.freeze_trainer, 1, holds=TRAINER),
    "take_over_frozen": Fault(process.take_over_frozen, 1.5, holds=TRAINER),
    "take_over_alive": Fault(process.take_over_alive, 1, holds=TRAINER),
    "lose_checkpoint": Fault(process.lose_checkpoint, 0.5, holds=TRAINER),
    "kill_redis": Fault(server.kill_redis, 1.5, holds=REDIS),
    "freeze_redis": Fault(server.freeze_redis, 0.7, holds=REDIS),
    "lose_lease": Fault(server.lose_lease, 0.7, holds=REDIS | TRAINER),
    "lose_commit": Fault(server.lose_commit, 0.7, holds=REDIS),
    "lose_recover": Fault(server.lose_recover, 0.5, holds=REDIS | TRAINER),
    "lose_recover_of_frozen": Fault(server.lose_recover_of_frozen, 0.5, holds=REDIS | TRAINER),
    "lose_everything": Fault(server.lose_everything, 0.2, holds=REDIS | TRAINER | PAYLOADS),
    "resubmit_dead": Fault(server.resubmit_dead, 0.5, shares=REDIS),
    "damage_payload": Fault(server.damage_payload, 1, holds=PAYLOADS, shares=REDIS),
    "delete_payload": Fault(server.delete_payload, 1, holds=PAYLOADS, shares=REDIS),
}
"""Every kind comes at least once in a soak; the rest is drawn by weight."""
