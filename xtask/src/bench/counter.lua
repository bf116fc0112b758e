-- Sends distinct calls: the transaction count of block FIRST + n. n visits COUNT numbers in steps
-- that share no factor with COUNT, so consecutive calls are not adjacent in the cache.
local first, count, step, n = @FIRST@, @COUNT@, @STEP@, 0
local before = 'POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: @LENGTH@\r\n\r\n@BEFORE@'
local after = '@AFTER@'

function request()
  n = (n + step) % count
  return before .. string.format("%06x", first + n) .. after
end
