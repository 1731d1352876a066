"""The daemonless engine, on kernel namespaces and overlayfs. See `docs/design/namespace-engine.md`."""
