import t from 'tap'
import { MemoryTurnStore } from '../../../src/proxy/store/port/memory.ts'
import { turnStoreConformance } from '../../conformance/turn-store.ts'

turnStoreConformance(t, async () => new MemoryTurnStore())
