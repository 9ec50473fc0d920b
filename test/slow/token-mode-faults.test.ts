import t from 'tap'
import { testFaults } from '../integration/token-mode-faults.ts'

testFaults(t, 'relay')
