import t from 'tap'
import { FAMILIES, testTokenMode } from '../unit/proxy/session/token-mode-families.ts'
import { DAILY_FAMILIES } from '../unit/proxy/tokens/real-models.ts'

for (const name of FAMILIES) if (!DAILY_FAMILIES.includes(name)) testTokenMode(t, name)
