"""Our checker of histories beside Porcupine, an independent one. Read `registers`, then `compare`."""
