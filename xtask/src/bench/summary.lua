-- This part is appended to every script. It prints wrk's figures for `Summary` (load.rs).
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("SUMMARY %d %d %d %d %d %d %d %d\n", summary.requests, summary.bytes,
    summary.duration, errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
