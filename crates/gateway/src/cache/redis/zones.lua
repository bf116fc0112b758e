-- Checks one call against its shared zones, and charges all of them, or none if one refuses.
-- The arithmetic is the same as in policy/limit.rs (`assess`, `raised`), in thousandths of a call and in milliseconds.
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
for index = 1, #KEYS do
  local rate, burst = tonumber(ARGV[4 * index - 3]), tonumber(ARGV[4 * index - 2])
  local cost, known_excess = tonumber(ARGV[4 * index - 1]), tonumber(ARGV[4 * index])
  local zone = {rate = rate, ms = 0}
  local stored = redis.call('GET', KEYS[index])
  if stored then
    local excess, last = string.match(stored, '^(%d+) (%d+)$')
    zone.excess, zone.last = tonumber(excess), tonumber(last)
  end
  local remaining = 0
  if zone.excess then
    zone.ms = now - zone.last
    if zone.ms < -60000 then zone.ms = 1 elseif zone.ms < 0 then zone.ms = 0 end
    remaining = math.max(0, zone.excess - math.floor(rate * zone.ms / 1000))
  end
  if known_excess > remaining then
    zone.excess, zone.last, zone.ms, zone.write = known_excess, now, 0, true
  end
  local extra_cost = (cost - 1) * 1000
  if zone.excess then
    local drained = math.floor(rate * zone.ms / 1000)
    zone.charged = math.max(0, zone.excess + 1000 - drained) + extra_cost
    zone.charged_at = zone.ms == 0 and zone.last or now
  else
    zone.charged, zone.charged_at = extra_cost, now
  end
  if refused == 0 and zone.charged > burst then refused = index end
  zones[index] = zone
end
local reply = {now, refused}
for index, zone in ipairs(zones) do
  if refused == 0 then
    zone.excess, zone.last, zone.write = zone.charged, zone.charged_at, true
  end
  if zone.write then
    -- After the excess and one more call have drained, the key is as good as new, so it expires.
    local drained_at = zone.last + math.ceil((zone.excess + 1000) * 1000 / zone.rate)
    local value = string.format('%.0f %.0f', zone.excess, zone.last)
    redis.call('SET', KEYS[index], value, 'PX', string.format('%.0f', math.max(1, drained_at - now)))
  end
  reply[#reply + 1] = zone.excess or -1
  reply[#reply + 1] = zone.last or -1
end
return reply
