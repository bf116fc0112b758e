-- Adds a gateway's usage to a quota and returns the total of all gateways. KEYS: the counter of the month.
-- ARGV: units since the gateway's last report; the minimum total, in case this server lost data; expiry of the key (Unix seconds).
local used = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
used = math.max(used + tonumber(ARGV[1]), tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f', used))
redis.call('EXPIREAT', KEYS[1], ARGV[3])
return {used}
