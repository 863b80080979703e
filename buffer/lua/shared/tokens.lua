-- The token ledger: how sampled tokens end. A script counts while it runs and writes once, by write_tokens().
-- Fields of K.tokens: sampled; n|fate|source trajectories; t|fate|source tokens; m|source masked tokens;
-- en|label|source and et|label|source, trajectories and tokens of an evaluation.
local counted = {}

local function count_tokens(field, number) counted[field] = (counted[field] or 0) + number end

local function spend(fate, source, trajectories, tokens)
  if trajectories == 0 and tokens == 0 then return end
  local at = "|" .. fate .. "|" .. source
  count_tokens("n" .. at, trajectories)
  count_tokens("t" .. at, tokens)
end

-- Tokens that never came in as a group.
local function waste(fate, source, trajectories, tokens)
  count_tokens("sampled", tokens)
  spend(fate, source, trajectories, tokens)
end

-- info of an index -> data source, trajectories, sampled tokens.
local function spent_of(info)
  if info == "" then return "", 0, 0 end
  -- Its worker wrote it; one that is not readable counts nothing here, and is found when the group is fetched.
  local readable, index = pcall(cmsgpack.unpack, info)
  if not readable or type(index) ~= "table" or type(index[3]) ~= "table" or type(index[5]) ~= "string" then
    return "", 0, 0
  end
  local tokens = 0
  for _, sampled in ipairs(index[3]) do tokens = tokens + (tonumber(sampled) or 0) end
  return index[5], #index[3], tokens
end

-- parked of a card: msgpack of payload key, bytes, ranges, info.
local function parked_info(card) return card.parked == "" and "" or cmsgpack.unpack(card.parked)[4] end

local function write_tokens()
  for field, number in pairs(counted) do
    if number ~= 0 or field ~= "sampled" then redis.call("HINCRBY", K.tokens, field, number) end
  end
  counted = {}
end
