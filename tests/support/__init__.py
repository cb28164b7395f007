"""What tests, examples and benchmarks share: servers, stores, suites, fuzzers, crashes."""
