import t from 'tap'
import { FAMILIES, testPrompts } from '../unit/tokens/prompt-families.ts'
import { DAILY_FAMILIES } from '../unit/tokens/real-models.ts'

for (const name of Object.keys(FAMILIES)) if (!DAILY_FAMILIES.includes(name)) testPrompts(t, name)
