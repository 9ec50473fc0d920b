import t from 'tap'
import { FAMILIES, testPrompts } from '../unit/proxy/tokens/prompt-families.ts'
import { DAILY_FAMILIES } from '../unit/proxy/tokens/real-models.ts'

for (const name of Object.keys(FAMILIES)) if (!DAILY_FAMILIES.includes(name)) testPrompts(t, name)
