-- Judges one call by every shared zone that it counts in and charges all of them, or none if one
-- refuses. The arithmetic is that of rules/limit.rs, line by line (`look`, `raised`), in whole
-- thousandths of a call and milliseconds; all of it stays below 2^53 where it matters, so that
-- doubles hold it exactly.
--
-- KEYS: one for each zone. ARGV: for each of them its rate (thousandths per second), its burst
-- (thousandths), the call's cost, and the excess that the key has at least (thousandths).
-- Answer: the time (ms), the place of the zone that refused or 0, and for each zone the excess and
-- the time of the last charge that are kept now, or -1 and -1.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local refused = 0
local zones = {}
for at = 1, #KEYS do
  local rate, burst = tonumber(ARGV[4 * at - 3]), tonumber(ARGV[4 * at - 2])
  local cost, least = tonumber(ARGV[4 * at - 1]), tonumber(ARGV[4 * at])
  local zone = {rate = rate, ms = 0}
  local kept = redis.call('GET', KEYS[at])
  if kept then
    local excess, last = string.match(kept, '^(%d+) (%d+)$')
    zone.excess, zone.last = tonumber(excess), tonumber(last)
  end
  local left = 0
  if zone.excess then
    zone.ms = now - zone.last
    if zone.ms < -60000 then zone.ms = 1 elseif zone.ms < 0 then zone.ms = 0 end
    left = math.max(0, zone.excess - math.floor(rate * zone.ms / 1000))
  end
  if least > left then
    zone.excess, zone.last, zone.ms, zone.write = least, now, 0, true
  end
  local more = (cost - 1) * 1000
  if zone.excess then
    local drained = math.floor(rate * zone.ms / 1000)
    zone.charged = math.max(0, zone.excess + 1000 - drained) + more
    zone.charged_at = zone.ms == 0 and zone.last or now
  else
    zone.charged, zone.charged_at = more, now
  end
  if refused == 0 and zone.charged > burst then refused = at end
  zones[at] = zone
end
local answer = {now, refused}
for at, zone in ipairs(zones) do
  if refused == 0 then
    zone.excess, zone.last, zone.write = zone.charged, zone.charged_at, true
  end
  if zone.write then
    -- Once all of it has drained, and a call besides, a key is as good as one that was never seen.
    local drained_at = zone.last + math.ceil((zone.excess + 1000) * 1000 / zone.rate)
    local value = string.format('%.0f %.0f', zone.excess, zone.last)
    redis.call('SET', KEYS[at], value, 'PX', string.format('%.0f', math.max(1, drained_at - now)))
  end
  answer[#answer + 1] = zone.excess or -1
  answer[#answer + 1] = zone.last or -1
end
return answer
