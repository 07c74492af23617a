"""Token buckets."""

from signaling.throttle import Bucket, Buckets


def test_bucket_allows_the_burst_then_the_rate():
    bucket = Bucket(rate=2.0, burst=4.0, now=0.0)
    assert [bucket.take(1, 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert [bucket.take(1, 1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(1, 1000.0) for _ in range(5)] == [True] * 4 + [False]


def test_refused_amount_costs_nothing():
    bucket = Bucket(rate=1.0, burst=10.0, now=0.0)
    assert not bucket.take(11, 0.0)
    assert bucket.take(10, 0.0)


def test_buckets_are_separate_and_the_least_recent_is_forgotten():
    buckets = Buckets(rate=1.0, burst=1.0, size=2)
    assert buckets.take("a", 1, 0.0)
    assert not buckets.take("a", 1, 0.0)
    assert buckets.take("b", 1, 0.0)
    assert not buckets.take("a", 1, 0.0)  # now "b" is the least recent
    assert buckets.take("c", 1, 0.0)
    assert len(buckets) == 2
    assert not buckets.take("a", 1, 0.0)
    assert buckets.take("b", 1, 0.0)
