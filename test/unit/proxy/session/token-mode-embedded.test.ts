import t from 'tap'
import { testTokenMode } from './token-mode-families.ts'

testTokenMode(t, 'embedded')
