from slm.serve.pool.counters import Histogram


def test_buckets_are_cumulative():
    histogram = Histogram((0.1, 1.0))
    for seconds, times in ((0.05, 1), (0.1, 2), (0.5, 1), (7.0, 1)):
        histogram.observe(seconds, times)
    assert histogram.buckets() == [("0.1", 3), ("1.0", 4), ("+Inf", 5)]
    assert histogram.sum == 7.75
