-- Sends one constant body with COUNT keys, in steps that share no factor with COUNT. So consecutive
-- keys are not adjacent in a table. Each run starts at another key.
local count, step = @COUNT@, @STEP@
local n = (os.time() * 104729) % count
local before = 'POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nX-Key: '
local after = '\r\nContent-Length: @LENGTH@\r\n\r\n@BODY@'

function request()
  n = (n + step) % count
  return before .. string.format("client-%09d", n) .. after
end
