"""Where the weights' Redis is: behind Sentinels it survives a fail-over, and a cluster is refused at the start."""

import pytest

from asyncrl.errors import PreflightError
from asyncrl.load_config import load
from asyncrl.run.connections import weights_url
from tests.support.commands import CONFIG
from tests.support.redis_cluster import running_cluster
from tests.support.redis_failover import running_pair, running_sentinels
from weightsync import open_log
from weightsync.errors import LogLost

PASSWORD, SENTINEL_PASSWORD = "p@ss:w/rd?#%", "s?nt&nel=1"


def test_the_log_follows_the_primary_that_sentinels_name() -> None:
    with running_pair(password=PASSWORD) as pair, running_sentinels(pair, password=SENTINEL_PASSWORD) as sentinels:
        log = open_log(sentinels.url, "demo")
        log.claim(1)
        log.put_document("layout", b"before")
        pair.await_replica()
        pair.primary.kill()
        log.put_document("other", b"after")
        assert log.owner() == 1
        assert (log.document("layout"), log.document("other")) == (b"before", b"after")
        log.close()


def test_an_address_without_a_service_says_what_is_missing() -> None:
    with pytest.raises(LogLost, match="the name of a service"):
        open_log("redis+sentinel://127.0.0.1:26379", "demo")


def test_a_cluster_is_refused_for_the_weights_and_another_address_is_taken() -> None:
    with running_cluster() as cluster:
        config = load(CONFIG).config
        with pytest.raises(PreflightError, match=r"Redis Cluster.*weightsync\.url"):
            weights_url(config, cluster.url)
        apart = load(CONFIG, ["weightsync.url=unix:///there.sock"]).config
        assert apart.weightsync.url is not None
        assert "there.sock" not in repr(apart)
