"""Models with matrices that are held in another form than f32."""
