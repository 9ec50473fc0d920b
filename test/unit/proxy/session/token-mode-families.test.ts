import t from 'tap'
import { DAILY_FAMILIES } from '../tokens/real-models.ts'
import { testTokenMode } from './token-mode-families.ts'

// The embedded model has its own file, so that both run concurrently.
for (const name of DAILY_FAMILIES) if (name !== 'embedded') testTokenMode(t, name)
