-- Appended to every script: prints the figures of wrk for `Summary`.
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("SUMMARY %d %d %d %d %d %d %d %d\n", summary.requests, summary.bytes,
    summary.duration, e.connect, e.read, e.write, e.timeout, e.status))
end
