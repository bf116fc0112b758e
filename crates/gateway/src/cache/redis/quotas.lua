-- Takes in what a gateway says was used of a quota, and says what all have used. KEYS: that of the
-- month. ARGV: units since the gateway last told, the least that it knows of (should this server have
-- forgotten), when the key goes (seconds since 1970).
local used = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
used = math.max(used + tonumber(ARGV[1]), tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f', used))
redis.call('EXPIREAT', KEYS[1], ARGV[3])
return {used}
