import t from 'tap'
import { turnStoreConformance } from '../../conformance/turn-store.ts'
import { MemoryTurnStore } from '../../helpers/memory-store.ts'

turnStoreConformance(t, async () => new MemoryTurnStore())
