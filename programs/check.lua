-- Checks Lua: tables, strings, closures, coroutines, the collector, and a file.
local percent = tonumber(arg[1] or "100")
local size = math.max(100, 200000 * percent // 100)
local table_of, sum = {}, 0
for i = 1, size do table_of[i] = {key = i, text = "entry " .. i} end
for _, entry in ipairs(table_of) do sum = sum + entry.key end
assert(sum == size * (size + 1) // 2)
for i = 1, size, 2 do table_of[i] = nil end
collectgarbage()
for i = 2, size, 2 do assert(table_of[i].text == "entry " .. i) end
table_of = nil
collectgarbage()

local order = {}
for i = 1, size // 10 do order[i] = (i * 7919) % 104729 end
table.sort(order)
for i = 2, #order do assert(order[i - 1] <= order[i]) end

local producer = coroutine.wrap(function() for i = 1, 1000 do coroutine.yield(i * i) end end)
for i = 1, 1000 do assert(producer() == i * i) end

local long = string.rep("abc", 10000)
assert(#long:gsub("b", "BB") == 40000)
assert(select(2, pcall(error, "caught")) == "caught")

local name = os.tmpname()
local file = assert(io.open(name, "w"))
for i = 1, 1000 do file:write("line ", i, "\n") end
file:close()
local lines = 0
for line in io.lines(name) do
    lines = lines + 1
    assert(line == "line " .. lines)
end
assert(lines == 1000)
assert(os.remove(name))
print("lua: " .. size .. " entries")
