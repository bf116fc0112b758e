-- Checks one call against its shared zones, and charges all of them, or none if one refuses.
-- The arithmetic is the same as in policy/limit.rs (`look`, `raised`), in thousandths of a call and in milliseconds.
-- All relevant numbers are below 2^53, so doubles represent them exactly.
--
-- KEYS: one per zone. ARGV: per zone its rate (thousandths per second), its burst (thousandths), the call's cost,
-- and the minimum excess of the key (thousandths).
-- Reply: the time (ms); the number of the zone that refused, or 0; per zone the stored excess and the time of its
-- last charge, or -1 and -1.
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
    -- After the excess and one more call have drained, the key is as good as new, so it expires.
    local drained_at = zone.last + math.ceil((zone.excess + 1000) * 1000 / zone.rate)
    local value = string.format('%.0f %.0f', zone.excess, zone.last)
    redis.call('SET', KEYS[at], value, 'PX', string.format('%.0f', math.max(1, drained_at - now)))
  end
  answer[#answer + 1] = zone.excess or -1
  answer[#answer + 1] = zone.last or -1
end
return answer
