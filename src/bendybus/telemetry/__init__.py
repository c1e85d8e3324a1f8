"""OpenTelemetry: traces, metrics and logs of the server over OTLP. Needs `bendybus[otel]`.

    contexts    the trace that a message belongs to
    tracing     spans of what clients do: send, commit, deliver, settle
    figures     the samples of /metrics as metrics of OpenTelemetry
    pipeline    what exports all of it, as the OTEL_ environment variables say

Only the composition root imports this package, and only if it is switched on.
"""
