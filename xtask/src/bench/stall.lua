-- One constant POST per request; prints latencies in microseconds.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '@BODY@'

function done(summary, latency, requests)
  local slow = 0
  for i = 1, #latency do
    local value, count = latency(i)
    if value > 100000 then slow = slow + count end
  end
  io.write(string.format("STALL %d %d %d\n", latency:percentile(99), latency.max, slow))
end
