-- One constant body under keys that walk through COUNT values by a step that shares no factor with
-- it, so that neighbours in time are no neighbours in a table. Each run begins elsewhere.
local count, step = @COUNT@, @STEP@
local n = (os.time() * 104729) % count
local before = 'POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nX-Key: '
local after = '\r\nContent-Length: @LENGTH@\r\n\r\n@BODY@'

function request()
  n = (n + step) % count
  return before .. string.format("client-%09d", n) .. after
end
