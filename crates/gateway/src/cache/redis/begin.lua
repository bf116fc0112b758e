-- Returns how long (ms) gateways must wait before they use the shared limits of a restarted Redis.
-- All gateways start at the same time, although they detect the restart at different times.
-- KEYS: the key of the start time. ARGV: the longest time (ms) that a gateway needs to detect it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or 'none'
local kept = redis.call('GET', KEYS[1])
local of, at
if kept then of, at = string.match(kept, '^(%x+) (%d+)$') end
if of ~= run or tonumber(at) > now + ARGV[1] then
  at = now + ARGV[1]
  redis.call('SET', KEYS[1], string.format('%s %.0f', run, at))
end
return {math.max(0, tonumber(at) - now)}
