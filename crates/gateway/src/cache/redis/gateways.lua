-- Records the heartbeat of a gateway and returns the number of gateways with a recent heartbeat.
-- One string holds the record, so that it is on one node of a cluster and needs no further command of Redis:
-- the run id of Redis, the start of the record (ms), and per gateway its id and the time (ms) until which it counts.
-- KEYS: the record. ARGV: the gateway's id; for how long (ms) it counts, 0 to remove it.
-- Reply: the number of gateways; the age of the record (ms).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or 'none'
local own_id, lifetime = ARGV[1], tonumber(ARGV[2])
local stored_run, start, members = string.match(redis.call('GET', KEYS[1]) or '', '^(%w+) (%d+)(.*)$')
local entries, count, last_end, known = {}, 0, now, false
local function add(id, ends)
  entries[#entries + 1] = string.format('%s:%.0f', id, ends)
  count, last_end = count + 1, math.max(last_end, ends)
end
for id, ends in string.gmatch(members or '', '(%d+):(%d+)') do
  if tonumber(ends) > now then
    known = true
    if id ~= own_id then add(id, tonumber(ends)) end
  end
end
if lifetime > 0 then add(own_id, now + lifetime) end
-- A restarted server may have lost heartbeats. After a time without any heartbeat, all gateways may have been cut off.
start = tonumber(start)
if stored_run ~= run_id or not known or start > now then start = now end
local value = string.format('%s %.0f %s', run_id, start, table.concat(entries, ' '))
redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', math.max(1, last_end - now)))
return {count, now - start}
