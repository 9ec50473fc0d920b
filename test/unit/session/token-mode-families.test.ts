import t from 'tap'
import { DAILY_FAMILIES } from '../tokens/real-models.ts'
import { testTokenMode } from './token-mode-families.ts'

for (const name of DAILY_FAMILIES) testTokenMode(t, name)
