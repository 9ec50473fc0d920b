import t from 'tap'
import { testFaults } from './token-mode-faults.ts'

testFaults(t, 'local')
testFaults(t, 'relay')
