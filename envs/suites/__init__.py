"""The evaluation suites that come with the package, one TOML file each: see `envs.suite`."""
