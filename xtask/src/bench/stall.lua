-- Sends one constant POST per request. Prints the p99 and the maximum latency in microseconds, and
-- the number of responses slower than 100 ms.
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
