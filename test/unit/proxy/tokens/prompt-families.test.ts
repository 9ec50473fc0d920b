import t from 'tap'
import { testPrompts } from './prompt-families.ts'
import { DAILY_FAMILIES } from './real-models.ts'

for (const name of DAILY_FAMILIES) testPrompts(t, name)
