-- Returns how long (ms) gateways must wait before they use the shared limits of a restarted Redis.
-- All gateways start at the same time, although they detect the restart at different times.
-- KEYS: the key of the start time. ARGV: the longest time (ms) that a gateway needs to detect it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or 'none'
local stored = redis.call('GET', KEYS[1])
local stored_run, start
if stored then stored_run, start = string.match(stored, '^(%x+) (%d+)$') end
if stored_run ~= run_id or tonumber(start) > now + ARGV[1] then
  start = now + ARGV[1]
  redis.call('SET', KEYS[1], string.format('%s %.0f', run_id, start))
end
return {math.max(0, tonumber(start) - now)}
