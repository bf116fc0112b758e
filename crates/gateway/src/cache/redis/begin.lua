-- When gateways may begin to judge by this server: all at one time, though they find out one after
-- the other that it was started. KEYS: where that is kept. ARGV: how long the last of them may take (ms).
-- Answer: how long to wait yet (ms).
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
